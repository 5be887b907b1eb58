"""What is expected of SpanBERT."""

from declared import CUT, GUESS, Expected, Peer, berts_kernels, encoder_settings

ENCODER = 109_514_298  # transformers' BertForMaskedLM
BOUNDARY = 20 * 200 + (2 * 768 + 200) * 768 + 768**2 + 6 * 768 + 30522

EXPECTED = Expected(
    tokenizer="wordpiece",
    stddevs={"": CUT},
    largest=0.04,
    first_losses={"span_mlm": GUESS, "sbo": GUESS},
    num_parameters={
        ("span_mlm", 30522, 512): ENCODER,
        ("span_mlm+sbo", 30522, 512): ENCODER + BOUNDARY,
    },
    decayed=berts_kernels(
        "boundary_head/positions/table", "boundary_head/first/kernel", "boundary_head/second/kernel"
    ),
    more_parts=True,
    peer=Peer(
        "BertForMaskedLM",
        "BertForSequenceClassification",
        encoder_settings,
        objectives=("mlm",),
        shapes=(((7, 84, 5), 128),),
    ),
)
