"""What several tests share: references, samples, cases, and scripts that run in processes of their own."""
