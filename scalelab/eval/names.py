"""The list of evaluations, with facts for tables. This module imports nothing.

An evaluation is the module scalelab/eval/<name>.py and a row here.
"""

# In the order of tables: name -> title, metric of the dev split, help text.
EVALUATIONS = {
    "pairs": ("minimal pairs", "accuracy", "Your own minimal pairs."),
    "blimp": ("BLiMP", "accuracy", "BLiMP: minimal pairs in 12 phenomena."),
    "agreement": ("agreement", "accuracy", "Agreement of subject and verb, three sets."),
    "syntaxgym": ("SyntaxGym", "accuracy", "SyntaxGym: 34 suites of surprisals."),
    "cats": ("CATs", "accuracy", "Commonsense Ability Tests: which sentence makes sense."),
    "copa": ("COPA", "accuracy", "COPA: the more plausible cause or effect."),
    "wsc": ("WSC", "accuracy", "WSC: what a pronoun stands for, by substitution."),
    "crows_pairs": ("CrowS-Pairs", "accuracy", "CrowS-Pairs: preference of stereotypes."),
    "winogender": ("Winogender", "accuracy", "Winogender: pronouns of occupations."),
    "probes.pos": ("POS probe", "accuracy", "Part of speech, from each layer's states."),
    "probes.dep": ("dependency probe", "accuracy", "Dependency relations, from states."),
    "probes.spans": ("chunk probe", "accuracy", "Kinds of chunks, from states."),
    "probes.distance": ("tree distance (UUAS)", "hits", "Structural probe of syntax trees."),
    "probes.depth": ("tree depth (root)", "hits", "Structural probe of the depth of words."),
    "probes.heads": ("heads as parsers", "hits", "Attention heads as dependency parsers."),
    "probes.tpdn": ("tree roles (TPDN)", "hits", "Tensor product decomposition of vectors."),
    "babylm": ("BabyLM", "accuracy", "The zero-shot tasks of the BabyLM Challenge 2026."),
    "wordsim": ("word similarity", "spearman", "Similarity of words, by their vectors."),
    "lambada": ("LAMBADA", "hits", "LAMBADA: the last word of a passage."),
    "lama": ("LAMA", "hits", "LAMA: facts, asked as cloze sentences."),
    "prompts": ("prompts", "accuracy", "Tasks as text with a gap, after solved examples."),
}
# Trivial scores that do not follow from the gold labels. SyntaxGym: the mean of `Item.chance` over
# its 34 published suites; an item of a suite is right if all its comparisons hold.
TRIVIAL = {"syntaxgym": 0.291}
BIAS = ("crows_pairs", "winogender")  # a higher score is not better
