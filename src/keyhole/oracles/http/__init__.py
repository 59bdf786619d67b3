"""Model servers as oracles: the Open Inference Protocol V2 over HTTP.

Enters: an address, and batches of sequences. Leaves: their answers, or a refusal in words.
service.py is the oracle; addresses.py and description.py say whom it asks, wire.py is what is sent,
attempts.py asks again, and deadline.py bounds every request. It imports httpx2 only in service.py
and deadline.py, so that a server needs no client.
"""
