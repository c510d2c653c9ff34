"""From words to a study: run keys, binding, presets, one composer."""
