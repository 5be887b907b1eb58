"""Parts of models. No part knows a family: what differs between families is passed in.

Array shapes in `nn`, `nets`, `systems` and `objectives` use one legend: B batch, T query length, S
key length, D width, E width of what the token table or a head multiplies, F width of the FFN, N
heads, K head size, V vocabulary, L layers, P predicted positions, C classes. Pages write a shape as
A x H x L (heads x width x layers) and use N for the number of parameters, as the protocol does.
"""
