"""Do independently trained models of a kind become alike?"""
