"""Courier: the messages of a run as signed files that people carry between a coordinator and sites without a port."""
