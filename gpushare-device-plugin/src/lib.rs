//! Reports GPU memory to the kubelet and gives each container the card of its claim.
