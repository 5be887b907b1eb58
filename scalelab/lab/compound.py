def scaled(shape, step):
    raise NotImplementedError
