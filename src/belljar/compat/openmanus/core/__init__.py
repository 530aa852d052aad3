"""The parts of OpenManus' `app.sandbox.core`, under their own names."""
