"""Ways to the chips through the programs that come with the driver: hccn_tool and npu-smi."""
