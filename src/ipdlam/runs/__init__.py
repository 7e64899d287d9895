"""What ``ipdlam train``, ``compare``, ``evaluate`` and ``predict`` do, without a terminal.

``config`` holds every setting of a run, ``problem`` makes data, network and trainer from it, ``job`` trains and
resumes in a ``folder``, ``compare`` sets methods side by side, ``model_file`` and ``predict`` use what was trained.
Imported here: everything but ``experiments`` and ``cli``. Begin with ``job``.
"""
