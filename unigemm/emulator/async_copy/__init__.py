"""Copies that run by themselves: TMA, bulk copies, mbarriers."""
