"""A model as a black box over HTTP, and what all servers here share.

Enters: an oracle, a budget, a rate. Leaves: a server on loopback unless asked otherwise.
server.py speaks the Open Inference Protocol V2; listening.py is the socket and the stop.
"""
