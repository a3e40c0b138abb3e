"""What all unit tests share: how long an example takes is not judged, since a busy machine is no fault of the code."""

import hypothesis

hypothesis.settings.register_profile("firstlight", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("firstlight")
