"""A processor for models of pictures and text: it takes raw images and sentences, and gives padded tensors."""

import torch


def as_batch(images):
    """The images of each sample: from lists of images, or from one image for each sample."""
    if isinstance(images[0], (list, tuple)):
        return images
    return [images]


class SceneProcessor:
    """Scales images to a mean of 0 and a deviation of 1, splits sentences into the words of a vocabulary."""

    def __init__(self, words, mean=0.5, std=0.25):
        self.index = {word: i for i, word in enumerate(["<pad>", *words])}
        self.mean, self.std = mean, std

    def pixels(self, image):
        return (torch.as_tensor(image, dtype=torch.float32).permute(2, 0, 1) - self.mean) / self.std

    def ids(self, sentence):
        return torch.tensor([self.index[word] for word in sentence.lower().split()])

    def __call__(self, images, text, labels=None):
        """`pixel_values` (batch, images, 3, height, width), `input_ids` (batch, words) and, if given, `labels`."""
        labels = [0] * len(text) if labels is None else labels
        samples = [
            (torch.stack([self.pixels(image) for image in own]), self.ids(sentence), label)
            for own, sentence, label in zip(as_batch(images), text, labels, strict=False)
        ]
        pixels, ids, labels = zip(*samples, strict=True)
        return {
            "pixel_values": torch.nn.utils.rnn.pad_sequence(pixels, batch_first=True),
            "input_ids": torch.nn.utils.rnn.pad_sequence(ids, batch_first=True),
            "labels": torch.tensor(labels),
        }
