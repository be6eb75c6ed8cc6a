"""Verification: experiments that compute a part of a live step in a second way and compare the results.

`verified_steps` says which steps are verified and how a result is reported. `all_experiments` builds every experiment;
add a new one there, and its name in vocab/verification.py.
"""
