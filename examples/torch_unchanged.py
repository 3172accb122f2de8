"""Let a model that knows nothing of unigemm compute its products with it.

Inside of `unigemm.torch.use` the products of an LSTM and a layer behind it are taken; it says which
were left to PyTorch, and why.

It needs `pip install "unigemm[torch]"`.
"""

import torch

import unigemm.torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = torch.nn.LSTM(32, 64, num_layers=2, batch_first=True).to(device)
head = torch.nn.Linear(64, 10, device=device)
x = torch.randn(4, 12, 32, device=device)


def predict():
    """Run the model as it is."""
    with torch.inference_mode():
        return head(model(x)[0])


expected = predict()
with unigemm.torch.use(device=device) as used:
    result = predict()
print(f"{used.calls} products by unigemm, {used.fallbacks} by PyTorch")
for reason, count in used.reasons.items():
    print(f"  {count} times: {reason}")
torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)

if device == "cuda":
    # A row has the same bits whatever the batch, which PyTorch's own kernels do not promise.
    with unigemm.torch.use(batch_invariant=True), torch.inference_mode():
        rows = torch.randn(64, 64, device=device)
        assert torch.equal(head(rows)[:1], head(rows[:1]))
