"""Processes that train one model together; a process alone is a group of one.

``group`` holds meetings, sums, and how an error or Ctrl-C reaches everybody; ``agreement`` refuses what is not the same
on all of them; ``torchrun`` joins the group that torchrun describes. Imported here: ``network``. Begin with ``group``.
"""
