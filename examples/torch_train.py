"""Train a small network whose linear layers are unigemm's, compiled, on a GPU or on the CPU.

Two layers with their activation in the kernel learn a sum of squares; then the linear layers of a
transformer are replaced in place.

It needs `pip install "unigemm[torch]"`.
"""

import torch

import unigemm.torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = torch.nn.Sequential(
    unigemm.torch.Linear(16, 64, activation="gelu_tanh", device=device),
    unigemm.torch.Linear(64, 1, device=device),
)
# Of small products on the CPU compiling takes longer than training.
compiled = torch.compile(model, fullgraph=True) if device == "cuda" else model
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

x = torch.randn(256, 16, device=device)
y = x.square().sum(1, keepdim=True)
for step in range(41):
    loss = torch.nn.functional.mse_loss(compiled(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step:2d}  loss {loss.item():8.3f}")

# Any model of PyTorch's: its layers are replaced in place, and keep their parameters.
encoder = torch.nn.TransformerEncoderLayer(32, 4, batch_first=True, device=device).eval()
count = unigemm.torch.replace_linear(encoder)
with torch.inference_mode():
    result = encoder(torch.randn(2, 10, 32, device=device))
print(f"{count} layers of a transformer replaced; its result has shape {tuple(result.shape)}")
