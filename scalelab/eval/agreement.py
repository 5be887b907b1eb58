"""Agreement of subject and verb, in three sets of sentences.

  python -m scalelab.eval.agreement --run=RUN --data=DIR --workdir=DIR

DIR holds what is there of colorlessgreen/English (Gulordava et al. 2018, "Colorless green recurrent
networks dream hierarchically"), linzen_testset (sentences of Linzen et al. 2016, as the former
filtered them) and marvin_linzen (Marvin and Linzen 2018, a table of pairs). In the first two a net
reads the sentence up to the verb, in the right and in the wrong form; a masked net, too, sees
nothing after it.
"""

from scalelab.eval import suites

if __name__ == "__main__":
    suites.run("agreement")
