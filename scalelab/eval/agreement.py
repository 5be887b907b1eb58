"""Agreement of subject and verb, in three sets of sentences.

  python -m scalelab.eval.agreement --run=RUN --data=DIR --workdir=DIR

DIR holds one or more of three sets: colorlessgreen/English (Gulordava et al. 2018, "Colorless green
recurrent networks dream hierarchically"), linzen_testset (sentences of Linzen et al. 2016, filtered
by Gulordava et al.) and marvin_linzen (Marvin and Linzen 2018, a table of pairs). In the first two
sets a model reads the sentence up to the verb, with the verb in the right and in the wrong form. A
masked model does not see the text after the verb either.
"""

from scalelab.eval import suites

if __name__ == "__main__":
    suites.run("agreement")
