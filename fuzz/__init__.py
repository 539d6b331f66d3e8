"""Coverage-guided fuzzing of everything that reads what somebody else wrote.

`targets` lists the readers, each with good inputs to begin from; `guard` runs one input and says what went wrong;
`one` is a process that fuzzes one target with atheris; `python -m fuzz` (`make fuzz`) runs all of them on all cores.
"""
