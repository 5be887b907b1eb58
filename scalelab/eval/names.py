"""The list of evaluations, with facts for tables. This module imports nothing.

An evaluation is the module scalelab/eval/<name>.py and a row here.
"""

# In the order of tables: name -> title, metric of the dev split.
EVALUATIONS = {
    "pairs": ("minimal pairs", "accuracy"),
    "blimp": ("BLiMP", "accuracy"),
    "agreement": ("agreement", "accuracy"),
    "syntaxgym": ("SyntaxGym", "accuracy"),
    "cats": ("CATs", "accuracy"),
    "copa": ("COPA", "accuracy"),
    "wsc": ("WSC", "accuracy"),
    "crows_pairs": ("CrowS-Pairs", "accuracy"),
    "winogender": ("Winogender", "accuracy"),
    "probes.pos": ("POS probe", "accuracy"),
    "probes.dep": ("dependency probe", "accuracy"),
    "probes.spans": ("chunk probe", "accuracy"),
    "probes.distance": ("tree distance (UUAS)", "hits"),
    "probes.depth": ("tree depth (root)", "hits"),
    "probes.heads": ("heads as parsers", "hits"),
    "probes.tpdn": ("tree roles (TPDN)", "hits"),
    "babylm": ("BabyLM", "accuracy"),
    "wordsim": ("word similarity", "spearman"),
    "lambada": ("LAMBADA", "hits"),
    "lama": ("LAMA", "hits"),
    "prompts": ("prompts", "accuracy"),
}
# Trivial scores that do not follow from the gold labels. SyntaxGym: the mean of `Item.chance` over
# its 34 published suites; an item of a suite is right if all its comparisons hold.
TRIVIAL = {"syntaxgym": 0.291}
BIAS = ("crows_pairs", "winogender")  # a higher score is not better
