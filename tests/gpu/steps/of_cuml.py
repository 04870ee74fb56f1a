# SPDX-License-Identifier: MIT
"""cuML: models fitted. Their sums differ by chance, so little is answered."""
import cuml
import cupy as cp
import numpy as np
from sklearn.datasets import (make_blobs, make_classification,
                              make_regression)

from common import main, near, step

N = 20000
blobs = cp.asarray(make_blobs(N, 20, centers=12,
                              random_state=0)[0].astype(np.float32))
points, classes = make_classification(N, 30, n_informative=10, n_classes=3,
                                      random_state=0)
points = cp.asarray(points.astype(np.float32))
classes = cp.asarray(classes.astype(np.int32))
inputs, outputs = make_regression(N, 40, noise=3, random_state=0)
inputs = cp.asarray(inputs.astype(np.float32))
outputs = cp.asarray(outputs.astype(np.float32))
neighbours = cuml.neighbors.NearestNeighbors(n_neighbors=8).fit(points)


def score(model, x, y):
    """Good, mediocre or bad."""
    return round(float(model.fit(x, y).score(x, y)) * 4)


def n_labels(model):
    return len(set(cp.asnumpy(cp.asarray(model.fit(blobs).labels_)).tolist()))


def is_finite(values):
    values = cp.asarray(values)
    return values.shape, bool(cp.isfinite(values).all())


@step(10)
def kmeans():
    return n_labels(cuml.KMeans(n_clusters=12, random_state=1, n_init=1))


@step(10)
def dbscan():
    return n_labels(cuml.DBSCAN(eps=5.0))


@step(5)
def hdbscan():
    return n_labels(cuml.HDBSCAN(min_cluster_size=50))


@step(20)
def pca():
    return near(cuml.PCA(n_components=5).fit(inputs)
                .explained_variance_.sum(), 3)


@step(20)
def svd():
    return near(cuml.TruncatedSVD(n_components=5).fit(inputs)
                .singular_values_.sum(), 3)


@step(20)
def linear():
    return score(cuml.LinearRegression(), inputs, outputs)


@step(20)
def ridge():
    return score(cuml.Ridge(), inputs, outputs)


@step(10)
def lasso():
    return score(cuml.Lasso(), inputs, outputs)


@step(5)
def svc():
    few, two = points[:5000], (classes[:5000] > 0).astype(cp.int32)
    return score(cuml.svm.SVC(), few, two)


@step(3)
def forest():
    return score(cuml.ensemble.RandomForestClassifier(
        n_estimators=40, max_depth=10, random_state=1, n_streams=4), points,
        classes)


@step(3)
def forest_regressor():
    return score(cuml.ensemble.RandomForestRegressor(
        n_estimators=20, max_depth=8, random_state=1, n_streams=1), inputs,
        outputs)


@step(20)
def nearest():
    return int(cp.asarray(neighbours.kneighbors(points[:2000])[1]).sum())


@step(10)
def nearest_class():
    return score(cuml.neighbors.KNeighborsClassifier(n_neighbors=5), points,
                 classes)


@step(3)
def umap():
    return is_finite(cuml.UMAP(n_neighbors=15, n_epochs=100, random_state=3)
                     .fit_transform(blobs))


@step(2)
def tsne():
    return is_finite(cuml.TSNE(max_iter=300, random_state=3)
                     .fit_transform(blobs[:8000]))


main()
