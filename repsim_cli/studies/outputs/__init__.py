"""How often do models predict the same?"""
