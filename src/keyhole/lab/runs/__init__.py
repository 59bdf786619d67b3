"""What a run leaves behind: records, directories, stores, and how they are read again.

Enters: records. Leaves: files, and the same records from them.
Nothing is recovered, drawn or trained here.
"""
