"""The fixed words of the report's page."""

from __future__ import annotations

from html import escape

from ipdlam.experiments.claims import LEAD, NEAR, NEAR_ONE
from ipdlam.experiments.contents import reading_label
from ipdlam.experiments.paper.setup import CHOSEN, LETTER
from ipdlam.experiments.spec import START

READINGS = ". ".join(f"{reading_label(each).capitalize()}: {escape(each.words)}" for each in (CHOSEN, LETTER))

INTRODUCTION = """\
The claims of <cite>Inertial Proximal Deep Learning Alternating Minimization for Efficient Neural Network
Training</cite> (Qiao, Sun, Pan and Li), which introduces iPDLAM, held against runs of the library <code>ipdlam</code>.
Every number of ours was worked out from the stored runs when this page was made, every verdict by a rule that is
part of the library. Where the paper leaves a setting open, the section says what was taken."""

READING_NOTE = f"""\
The paper leaves open how heavy the proximal terms of W and b are, and where the penalty starts. {READINGS}. Under each
claim stand what the paper says, the rule by which it is judged, and for each reading and scale what we found and the
verdict."""

WARNING = """\
<p class="warning"><strong>Smoke runs only.</strong> A tiny network on 8 by 8 digits, for a few iterations: it shows
that everything works and proves nothing about the paper. No claim is judged.</p>"""

TABLE_NOTE = """\
<p class="note">Accuracies in percent. <i>best test</i> is the highest of any iteration, <i>at</i> which one.
<a href="#glossary">Glossary</a></p>"""

GLOSSARY = f"""\
<dt>scale</dt>
<dd>paper: the network and length of the paper (two hidden layers of 1500, 200 iterations) unless the section says
otherwise; small: the same with layers of 300, again unless the section says otherwise; smoke: a few iterations on
digits.</dd>
<dt>Phi (&Phi;)</dt>
<dd>The objective that is minimised: the loss and the regulariser, plus the squared gaps between each layer and what its
input gives, weighted by half the penalty. A small Phi says little of the network by itself. It compares runs of one
method with one penalty: other methods minimise other functions.</dd>
<dt>weighed at rho {START}</dt>
<dd>Phi of the last iterate with {START} for the penalty, whatever that has grown to: it compares iterates. A run that
kept the penalty there would end elsewhere.</dd>
<dt>smallest lead, stable from</dt>
<dd>By how many points of test accuracy iPDLAM is ahead where it is least so, among the first iterations after which
both were evaluated; the iteration from which on the test accuracy stays within {NEAR} of the last one.</dd>
<dt>level at, after seconds</dt>
<dd>When the test accuracy is first within {NEAR} of the best that iPDLAM has.</dd>
<dt>inertia (&alpha;, &beta;, &gamma;)</dt>
<dd>How far an update first goes on in the direction of the last change; 0 is not at all.</dd>
<dt>proximity (&delta;)</dt>
<dd>The weight of the terms that keep an update near the point that inertia leads to.</dd>
<dt>penalty (&rho;)</dt>
<dd>The weight of the gaps in Phi. It grows by a factor each iteration, up to a bound.</dd>
<dt>passes</dt>
<dd>How often all samples were read in the whole run: an epoch of an optimizer is one pass, an iteration of an
alternating method one or more.</dd>
<dt>training, test</dt>
<dd>The accuracy of the true forward pass after the last iteration, in percent. Brackets hold the lowest and the highest
over the seeds of a mean.</dd>
<dt>best test, at</dt>
<dd>The highest test accuracy of any iteration that was evaluated (at the paper scale every fifth, at the small one
every second or third, of most), and which one it was. The test set itself picks it, so that it is a little too
kind to every method.</dd>
<dt>seconds</dt>
<dd>Of training only: the clock stops while accuracies are evaluated. They compare runs on one machine, roughly: most
runs had one thread beside other work.</dd>
<dt>times as fast</dt>
<dd>To within {LEAD} of the best test accuracy of the optimizer alone, in seconds of training; 0 is never.</dd>
<dt>gain, in equal time</dt>
<dd>Points of best test accuracy over the optimizer alone, with as many passes over the data, and within the time of the
quicker of the two.</dd>
<dt>higher, like</dt>
<dd>Of two accuracies one is higher if it is so by more than {LEAD}; one is like another, or like a printed one,
within {NEAR_ONE}.</dd>
<dt>holds</dt>
<dd>All that the claim says was found.</dd>
<dt>holds partly</dt>
<dd>The claim says several things, of which some were found; the others were not found, or not measured.</dd>
<dt>does not hold</dt>
<dd>Nothing that the claim says was found, though some of it or all was measured.</dd>
<dt>diverged</dt>
<dd>A number was no longer finite. Such a run has a best iterate, but no end.</dd>
<dt>not measured</dt>
<dd>The runs that the claim needs are not there, or do not decide it.</dd>
<dt>not judged</dt>
<dd>There are smoke runs only, which cannot judge a claim of the paper.</dd>
<dt>chosen reading, to the letter</dt>
<dd>The paper does not say how heavy the proximal terms of W and b are, nor where the penalty starts. A reading is what
one takes it to mean; the verdicts begin with both. Experiments with settings of their own say so in
their sections.</dd>
<dt>no claim</dt>
<dd>A question that the paper leaves open: what was found, without a verdict.</dd>
<dt>our reading</dt>
<dd>What we take the paper to mean where it does not say it so. Readings, and what others than the paper say, are
counted apart from its own claims.</dd>"""
