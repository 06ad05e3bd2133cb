"""Access to chips through the programs shipped with the driver: hccn_tool and npu-smi."""
