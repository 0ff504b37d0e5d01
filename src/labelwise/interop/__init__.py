"""What other tools wrote, turned into ours: configs today, saved models later."""
