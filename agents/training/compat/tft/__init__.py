"""MindIO TFT: pure state machines that decide (`controller`) and carry out (`processor`) a repair."""
