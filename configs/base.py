"""The control: every other config is a diff of this one.

It is RoBERTa-style pre-training as the benchmark protocol has it: byte-level BPE, DOC-SENTENCES,
MLM alone. Systems say in their own files (`DEPARTURES`) where they differ and why.
"""

import ml_collections
from ml_collections import config_dict


def get_config() -> ml_collections.ConfigDict:
    """Returns every field that a run has, with the control's value."""
    config = ml_collections.ConfigDict()
    config.system = "roberta"  # a file of scalelab/systems/
    config.objective = "mlm"  # losses to sum: mlm, mlm+nsp, clm
    config.mask_rate = 0.15  # share of tokens that MLM predicts
    config.seed = 0  # of parameters, examples and their order, masks, dropout
    # Digest of the parameters that it begins with; --init fills it in. None: random ones.
    config.init = config_dict.placeholder(str)

    net = config.net = ml_collections.ConfigDict()
    net.num_heads, net.width, net.num_layers = 2, 128, 2  # the shape, A x H x L
    net.ffn_width = config_dict.placeholder(int)  # None: 4 * width
    net.max_len = 512  # positions that the net has
    net.dropout_rate = 0.1  # on embeddings, attention weights and the output of each sublayer
    net.output_embedding = config_dict.placeholder(str)  # None: the input's (tied); or untied
    net.dtype = "float32"  # of the computation; parameters, softmax and losses stay float32

    tokenizer = config.tokenizer = ml_collections.ConfigDict()
    tokenizer.kind = "bytebpe"  # wordpiece, bytebpe, bpe, unigram
    tokenizer.vocab_size = 30_000  # pieces, special ones included
    tokenizer.lowercase = False  # whether case and accents are dropped

    data = config.data = ml_collections.ConfigDict()
    data.corpus = "builtin"  # or wikitext:DIR, text:GLOB, jsonl:GLOB, parquet:DIR, tfds:NAME
    data.format = "doc_sentences"  # doc_sentences, segment_pair, full_sentences
    data.errors = "strict"  # what invalid UTF-8 does; "replace" goes on
    data.keep_headings = False  # of WikiText sections
    data.short_rate = 0.1  # share of segment pairs with a random shorter target length
    data.valid_rate = 0.005  # share of documents, where the source has no validation split
    data.order_seed = config_dict.placeholder(int)  # of the examples' order; None: the run's seed

    # The two phases: tokens and examples of a batch, and the second one's share of the examples.
    config.short = ml_collections.ConfigDict(dict(max_len=128, batch_size=64))
    config.long = ml_collections.ConfigDict(dict(max_len=512, batch_size=16, example_rate=0.1))
    # Its epochs for each of the first phase's; None: as many; 0 trains the first phase alone.
    config.long.epoch_rate = config_dict.placeholder(float)

    optim = config.optim = ml_collections.ConfigDict()
    optim.learning_rate = 1e-4  # at the end of the warm-up
    # AdamW's moments
    optim.beta1, optim.beta2, optim.eps = 0.9, 0.999, 1e-6
    optim.weight_decay = 0.01  # decoupled; not on biases and norms
    optim.clip_norm = 1.0  # largest norm of all gradients together; None: no clipping
    optim.schedule = "linear"  # to zero at the end of the budget
    optim.total_epochs = 10.0  # the budget: exactly one of the five
    optim.total_steps = config_dict.placeholder(int)
    optim.total_tokens = config_dict.placeholder(float)
    optim.total_flops = config_dict.placeholder(float)
    optim.total_secs = config_dict.placeholder(float)
    optim.warmup_steps = 1000  # on the clock of the budget
    optim.warmup_tokens = config_dict.placeholder(float)
    optim.warmup_flops = config_dict.placeholder(float)
    optim.warmup_secs = config_dict.placeholder(float)

    # How often, and on how many examples, a run is validated.
    config.eval = ml_collections.ConfigDict(dict(every_steps=1000, num_examples=2000))

    machine = config.machine = ml_collections.ConfigDict()
    machine.data_parallel = -1  # devices on each mesh axis; -1 takes those that are left
    machine.fsdp_parallel = 1
    machine.tensor_parallel = 1
    machine.num_microbatches = 1  # gradient accumulation within a step
    machine.remat = "none"  # none, dots, full: what the backward pass recomputes
    machine.loader = "tf"  # tf.data, or numpy where TensorFlow is not installed
    machine.prefetch = 4  # batches made ahead
    machine.num_workers = 2  # processes that prepare data
    machine.cache_dir = "~/.cache/scalelab"  # prepared corpora, tokenizers, examples
    machine.compile_cache_dir = "~/.cache/scalelab/xla"
    machine.checkpoint_every_steps = 500
    machine.num_checkpoints = 2  # the last so many are kept, and the best
    machine.log_every_steps = 50
    machine.init = config_dict.placeholder(str)  # run that the parameters are from; --init sets it
    machine.distributed = False  # several processes: jax.distributed.initialize()
    return config
