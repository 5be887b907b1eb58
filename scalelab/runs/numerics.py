"""The version of the numbers: two runs compare where config, data and this agree.

It rises by one whenever a golden number moves (`tests/golden/`: parameters, FLOPs, the loss after
three steps), that is, whenever the same config gives another result than before beyond rounding.
tests/test_numerics.py knows the digests of the numbers of each version, and fails until it is
raised and CHANGELOG's section "Numerics" says which systems moved, by how much and why.
"""

VERSION = 1
