"""Commands import what they run when they run it; a name that a test replaces must not be taken over for good.

Modules that take `load_package` over by name are imported here: were they first imported while a test has it replaced,
they would keep the replacement for all tests after.
"""

import day0.align.layer_by_layer
import day0.align.stage
import day0.serve.load  # noqa: F401
