"""Text as an input: prompts that make a language model misbehave (TensorFuzz's third experiment, arXiv 1807.10875).

The loop, the corpus, the bandit and the store are those of every other search. What is here is what text needs: prompts
as ids (``codec``, ``space``), models that write (``models``), what counts as misbehaving (``objectives``), edits
(``mutators``), and findings that are read rather than measured (``examine``, ``telling``).
"""
