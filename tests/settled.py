"""Imported last by the server that test processes are forked from.

What has been imported is not looked through for garbage in each of them, nor copied because it was looked at.
"""

import gc

gc.collect()
gc.freeze()
