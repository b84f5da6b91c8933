"""The parts that strategies are composed of; engine-free."""
