"""What all unit tests share: how long an example takes is not judged, since a busy machine is no fault of the code.

`--hypothesis-profile=thorough`, which `make test-full` says, tries four times as many examples.
"""

import hypothesis

PATIENT = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("firstlight", PATIENT)
hypothesis.settings.register_profile("thorough", PATIENT, max_examples=400)
hypothesis.settings.load_profile("firstlight")
