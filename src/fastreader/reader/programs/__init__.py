"""Many prompts of many questions in lockstep: requests, scheduler, costs and journal."""
