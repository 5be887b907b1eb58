"""From a corpus to batches; `loading.load_data` opens the data of a training."""
