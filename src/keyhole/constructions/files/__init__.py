"""Built Transformers as files.

Enters: a Transformer with token maps. Leaves: a safetensors file of kind `unit`, and back.
Arrays by name, maps by name and parameters, never code.
"""
