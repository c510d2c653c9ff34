"""Short texts that no two tests need to make."""

TEXTS = [f"rain falls on {i} roofs and runs down the wall of house number {i * i}" for i in range(120)]
