"""BERT, `transformers`' BertFor...: Devlin et al. 2019."""

from scalelab.interop.mapping import Architecture, Map, affine, norm, row
from scalelab.interop.maps._layers import encoder_layers, encoder_map

HEAD = "cls.predictions"


def make(system: str, classes: str) -> Map:
    """Makes the map of a family with BERT's names.

    Args:
      system: in tensors' names, in place of "bert".
      classes: in names of classes, in place of "Bert".
    """
    pooled = (
        *affine("head/dense", f"{system}.pooler.dense"),
        *affine("head/out", "classifier"),
    )
    return encoder_map(
        system,
        classes,
        (12, 768, 12, 3072, 512, 30522),
        body=encoder_layers(f"{system}.encoder.layer.{{}}"),
        heads={
            "mlm": (
                *affine("token_head/dense", f"{HEAD}.transform.dense"),
                *norm("token_head/norm", f"{HEAD}.transform.LayerNorm"),
                row("token_head/bias", f"{HEAD}.bias", "vocabulary"),
            ),
            "nsp": (
                *affine("pair_head/pooler", f"{system}.pooler.dense"),
                *affine("pair_head/classifier", "cls.seq_relationship"),
            ),
            "classify": pooled,
            "choices": pooled,
        },
        architectures=(
            Architecture(f"{classes}ForPreTraining", ("mlm", "nsp"), "masked"),
            Architecture(f"{classes}ForMaskedLM", ("mlm",), "masked"),
            Architecture(f"{classes}ForNextSentencePrediction", ("nsp",)),
        ),
        tied=(
            (f"{HEAD}.decoder.weight", f"{system}.embeddings.word_embeddings.weight"),
            (f"{HEAD}.decoder.bias", f"{HEAD}.bias"),
        ),
        unused=(rf"{system}\.pooler\.dense\.(weight|bias)",),
    )


MAP = make("bert", "Bert")
