"""What the settings of the methods are where nobody says: here alone, for trainers, the command line and its help.

Nothing here imports torch, so that help and mistakes are answered at once.
"""

LOSS = "squared"
ITERATIONS = 50
EPOCHS = 10

# Of iPDLAM, and of the methods that share a setting with it.
REGULARIZER = "ridge"
INERTIA = 0.7  # alpha = beta = gamma in the paper
PROXIMITY = 1.0  # delta
PENALTY = 0.1  # rho_0
PENALTY_GROWTH = 1.1  # theta
PENALTY_MAX = 1e6
ORDER = "reverse"

# Of mini-batches; the second for models that are more than perceptrons.
PERCEPTRON, NETWORK = {"step": 0.5, "proximity": 3.0}, {"step": 0.25, "proximity": 1.0}
RANK, OUTPUT_RANK = 64, 64
WEIGHT_DECAY = 0.0
PRECISION = "float32"  # of the large products
ENVELOPE_GROWTH = 1e4  # what rho grows by on mini-batches, until the envelope is the loss
BATCH_SIZE, BATCH_SIZE_OF_FEW, FEW_SAMPLES = 512, 64, 10000  # the second below so many samples

# Of other authors' methods: alpha of BCD, rho of dlADMM.
BCD_PROXIMITY = 5.0
DLADMM_PENALTY = 1e-6

# The optimizers, each with the rate that suits it: they measure their steps in units of their own.
LEARNING_RATES = {
    "sgd": 0.05,
    "adagrad": 0.01,
    "adadelta": 1.0,
    **dict.fromkeys(("rmsprop", "adam", "amsgrad", "adamax", "adamw", "nadam", "radam"), 0.001),
}
OPTIMIZER = "adam"
