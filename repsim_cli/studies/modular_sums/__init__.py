"""Do models that add modulo a prime agree inside?"""
