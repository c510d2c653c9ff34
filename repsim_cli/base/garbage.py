"""Python's search for cyclic garbage, in the process of a command. Imports leave hundreds of thousands of objects that
stay to the end: looking through them while they are made, and once more when the process ends, takes two seconds."""

import gc


def pause() -> None:
    """Stops the search until `resume`."""
    gc.disable()


def resume() -> None:
    """Starts the search again, where it was stopped, without what has been made so far."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def skip_final_collection() -> None:
    """Leaves all that there is to the end of the process, which frees it at once."""
    gc.freeze()
