//! Reports GPU memory to the kubelet and gives each container exactly the card of its claim.
