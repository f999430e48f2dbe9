"""The functions of which a finding's ``repro.py`` is made: the writer copies the source of those that it needs.

Each must work in a script that imports nothing of nnfuzz, with the constants of ``facts`` set to the finding's own.
"""
