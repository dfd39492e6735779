"""Mutants of the Lua scripts: each has one small mistake, which a contract test must notice.

``make mutants`` changes one place of a script, runs the contract tests that call it on a real
server until one fails, and reports the mutants that no test noticed. A survivor is either a test
that is missing, or it behaves as the original does and is explained in ``explanations.json``.
"""
