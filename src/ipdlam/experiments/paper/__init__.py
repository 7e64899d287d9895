"""The paper's tables and figures, and the questions that it leaves open: one declarative file each.

``setup`` says what they share: the network, the data and how the paper is read. Begin with ``table1``.
"""
