"""One head behind answers cast to f32, f16 or bf16.

Enters: an oracle that declares a number format. Leaves: a Head finer than any single answer.
Null balance asks where the answer would be 0; cast_examination.py checks there.
"""
