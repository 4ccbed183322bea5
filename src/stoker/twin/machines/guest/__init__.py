"""What runs inside a machine: a small init, a small cloud-init and `systemctl`. Standard library and itself only.

It is loaded without the rest of Stoker, so that a machine boots in a few hundredths of a second.
"""
