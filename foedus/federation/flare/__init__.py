"""The federation over NVIDIA FLARE: kits, certificates, jobs, and the classes that FLARE loads; sessions live above."""
