"""Parameters of the methods, for editors: written by `tools/signatures.py`."""

from collections.abc import Mapping
from typing import Any, Literal, Optional, Union

from labelwise.features.settings import TfidfConfig
from labelwise.labelspace.buckets import RepartitionConfig
from labelwise.linear.solver import SolverConfig
from labelwise.methods.attention_xml import AttentionXML as _AttentionXML
from labelwise.methods.bigru import BiGRU as _BiGRU
from labelwise.methods.ensemble import Ensemble as _Ensemble
from labelwise.methods.hybrid_linear import HybridLinear as _HybridLinear
from labelwise.methods.linear_flat import LinearFlat as _LinearFlat
from labelwise.methods.linear_tree import LinearTree as _LinearTree
from labelwise.methods.mach import CandidatesConfig
from labelwise.methods.mach import Mach as _Mach
from labelwise.methods.mach import MachTraining
from labelwise.methods.mhe_face import MheFace as _MheFace
from labelwise.methods.mhe_image import MheImage as _MheImage
from labelwise.methods.mhe_text import MheText as _MheText
from labelwise.methods.popularity import Popularity as _Popularity
from labelwise.methods.text_encoder import TextEncoder as _TextEncoder
from labelwise.methods.xr_transformer import XRTransformer as _XRTransformer
from labelwise.nn.config import BackboneConfig
from labelwise.nn.config import DigitHeadConfig
from labelwise.nn.config import EncoderConfig
from labelwise.nn.config import FaceNetworkConfig
from labelwise.nn.config import FineTuningConfig
from labelwise.nn.config import HeadConfig
from labelwise.nn.config import ImageConfig
from labelwise.nn.config import MarginConfig
from labelwise.nn.config import MonitorConfig
from labelwise.nn.config import RecurrentConfig
from labelwise.nn.config import TrainingConfig
from labelwise.nn.config import WordTraining
from labelwise.nn.config import WordsConfig

class AttentionXML(_AttentionXML):
    """A label tree with a BiLSTM and label-wise attention at each level: for long texts and many labels.

    Parameters
    ----------
    words
        The vocabulary and the words' vectors. Keys: max_length, min_frequency, max_size, lowercase, numbers, vectors, vectors_words, initial, width, normalise, frozen.
    recurrent
        The recurrent layer. Keys: cell, width, word_dropout, dropout, learned_start.
    hidden
        Widths of the layers between a label's view of a document and its score; all labels share them.
    flat
        No tree: all labels are scored for every document. For a few thousand labels.
    cluster_size
        Maximum number of labels per cluster; clusters are halved until they are that small.
    levels
        Instead of `cluster_size`: clusters at each level from the top, powers of 2, for deeper trees.
    beam_width
        Beam width: nodes per level whose children are scored.
    trees
        Number of trees (with their networks) whose scores are averaged; each is clustered with another seed.
    tfidf
        TF-IDF of the documents that represent labels in clustering. Keys: analyzer, ngrams, stop_words, lemmas, lemmatizer, stemmer, min_df, max_df, max_features, sublinear, idf, norm, lowercase, hash_bits.
    label_features
        Largest features per label in clustering; null keeps all.
    training
        How each level is trained. Keys: epochs, steps, batch_size, tokens_per_batch, accumulate, clip, optimiser, schedule, precision, validate_every, metric, early_stopping, restore_best, averaging, time_budget, checkpoint_every, shard_head, log_every, load_ahead, tensorboard, seed.
    valid_fraction
        Fraction of the training documents held out to choose the best weights when the data has no valid part; at most 1,000 documents.
    """
    def __init__(
        self,
        *,
        words: Mapping[str, Any] | WordsConfig = ...,
        recurrent: Mapping[str, Any] | RecurrentConfig = ...,
        hidden: list[int] = [256],
        flat: bool = False,
        cluster_size: int = 8,
        levels: list[int] | None = None,
        beam_width: int = 64,
        trees: int = 1,
        tfidf: Mapping[str, Any] | TfidfConfig = ...,
        label_features: int | None = 500,
        training: Mapping[str, Any] | WordTraining = ...,
        valid_fraction: float = 0.05,
    ) -> None: ...

class BiGRU(_BiGRU):
    """A BiGRU that scores all labels, with label-wise attention or without: the baseline of attention_xml.

    Parameters
    ----------
    words
        The vocabulary and the words' vectors. Keys: max_length, min_frequency, max_size, lowercase, numbers, vectors, vectors_words, initial, width, normalise, frozen.
    recurrent
        The recurrent layer. Keys: cell, width, word_dropout, dropout, learned_start.
    attention
        Label-wise attention, or the mean of the hidden states for all labels.
    training
        Settings of training. Keys: epochs, steps, batch_size, tokens_per_batch, accumulate, clip, optimiser, schedule, precision, validate_every, metric, early_stopping, restore_best, averaging, time_budget, checkpoint_every, shard_head, log_every, load_ahead, tensorboard, seed.
    valid_fraction
        Fraction of the training documents held out to choose the best weights when the data has no valid part; at most 1,000 documents.
    """
    def __init__(
        self,
        *,
        words: Mapping[str, Any] | WordsConfig = ...,
        recurrent: Mapping[str, Any] | RecurrentConfig = ...,
        attention: Literal['label', 'none'] = 'label',
        training: Mapping[str, Any] | WordTraining = ...,
        valid_fraction: float = 0.05,
    ) -> None: ...

class Ensemble(_Ensemble):
    """Several models of any methods as one: scores averaged, with equal, given or learned weights.

    Parameters
    ----------
    members
        Models: paths of model or run folders, or mappings with `method` and its parameters, which are trained.
    combine
        What is combined: scores, ranks, softmax or sigmoid of scores, calibrated probabilities; `logistic` learns a logistic regression on their log-odds.
    weights
        Weight per member; `learn`: those with the best `metric` on held-out documents; null: equal weights.
    metric
        What `weights: learn` maximises: P@k, RP@k or nDCG@k.
    candidates
        Labels that every member ranks per document, more if more are predicted.
    time_budget
        Wall-clock seconds for all of `fit`: members that are trained share them, learning uses a sample.
    """
    def __init__(
        self,
        *,
        members: list[Any] = [],
        combine: Literal['average', 'rank_average', 'softmax_average', 'sigmoid_average', 'probability_average', 'logistic'] = 'average',
        weights: Union[list[float], Literal['learn'], None] = None,
        metric: str = 'nDCG@5',
        candidates: int = 50,
        time_budget: float | None = None,
    ) -> None: ...

class HybridLinear(_HybridLinear):
    """Linear trees over TF-IDF and the vectors of a pretrained encoder that is not trained: more accurate, no GPU.

    Parameters
    ----------
    tfidf
        How texts become features (not used when the data has features). Keys: analyzer, ngrams, stop_words, lemmas, lemmatizer, stemmer, min_df, max_df, max_features, sublinear, idf, norm, lowercase, hash_bits.
    feature_norm
        Scale the data's own features to unit L2 norm per document, when training and when predicting.
    vector_scale
        Norm of a document's vector, which is centred by the mean of the training documents; rows of TF-IDF have the norm 1. 0.5 suits long texts, up to 1 short ones, in which words say less.
    label_documents
        Label names as training documents: `texts` (of the data), or a vocabulary file with other names as well.
    label_language
        Language of the names in a SKOS file of `label_documents` or `hierarchy`.
    label_text_weight
        Weight of a label's names, relative to its documents, when labels are clustered: 0 for documents alone, 1 for names alone. Names are those of `label_documents`, or the label texts of the data.
    tree
        The tree: labels halved recursively, clustered into `branching` groups at once, or your own hierarchy.
    hierarchy
        With `tree: hierarchy`, a file of child<TAB>parent lines, whose children may be labels or groups of them, or a vocabulary with broader concepts (SKOS, or a table with a header).
    trees
        Number of trees whose scores are averaged; each is clustered with another seed. A hierarchy is one tree.
    leaf_size
        Maximum number of labels per leaf cluster.
    branching
        Children per inner node.
    label_features
        Largest features per label in clustering; null keeps all.
    solver
        How the classifiers are trained. Keys: loss, cost_positive, cost_negative, bias, tolerance, max_passes, threshold, max_weights.
    negatives
        Training documents of a node: those of its labels; also false positives of levels above; also your own.
    user_negatives
        With `user`: a sparse .npz [documents, labels], or data of the same documents with wrong labels.
    relevance
        Weight positive examples by the labels' values in the data.
    beam
        Beam width: nodes kept per level in prediction, or a list with one for each level above the labels.
    labels_per_tree
        Labels that each of several trees contributes to the average, at least; more if more are predicted.
    post_processor
        How a node's margin becomes a score that is combined with its parent's, or a list with one for each level.
    ties
        Order of labels with equal scores: by index in the label space, or by position in the tree, the first of several, as PECOS orders them.
    precision
        Precision of the stored weights.
    memory
        Refuse to train what does not fit in memory: `check`, `ignore`, or a limit in GB.
    time_budget
        Wall-clock seconds for all of `fit`, including time before an interruption. With less time fewer trees are trained, at least one, or the solver makes fewer passes.
    seed
        Seed of clustering and training.
    encoder
        The encoder of the document vectors. Keys: model, architecture, vocabulary, max_length, long_texts, windows, pooling, layers, frozen, precision, gradient_checkpointing.
    whitening
        Divide every principal direction of the vectors by its variance to this power: 0 for vectors as they are, 0.5 for the same variance in all directions.
    """
    def __init__(
        self,
        *,
        tfidf: Mapping[str, Any] | TfidfConfig = ...,
        feature_norm: Optional[Literal['l2']] = None,
        vector_scale: float = 0.5,
        label_documents: str | None = None,
        label_language: str | None = None,
        label_text_weight: float = 0.0,
        tree: Literal['balanced', 'kway', 'hierarchy'] = 'balanced',
        hierarchy: str | None = None,
        trees: int = 3,
        leaf_size: int = 100,
        branching: int = 16,
        label_features: int | None = 500,
        solver: Mapping[str, Any] | SolverConfig = ...,
        negatives: Literal['teacher', 'matcher', 'user', 'matcher+user'] = 'teacher',
        user_negatives: str | None = None,
        relevance: bool = False,
        beam: int | tuple[int, ...] = 10,
        labels_per_tree: int = 20,
        post_processor: Union[Literal['l1_hinge', 'l2_hinge', 'l3_hinge', 'l4_hinge', 'log_l1_hinge', 'log_l2_hinge', 'log_l3_hinge', 'log_l4_hinge', 'smooth_l3_hinge', 'log_smooth_l3_hinge', 'sigmoid', 'log_sigmoid', 'none'], tuple[Literal['l1_hinge', 'l2_hinge', 'l3_hinge', 'l4_hinge', 'log_l1_hinge', 'log_l2_hinge', 'log_l3_hinge', 'log_l4_hinge', 'smooth_l3_hinge', 'log_smooth_l3_hinge', 'sigmoid', 'log_sigmoid', 'none'], ...]] = 'l3_hinge',
        ties: Literal['label', 'tree'] = 'label',
        precision: Literal['float32', 'float16', 'int8'] = 'float32',
        memory: Union[Literal['check', 'ignore'], float] = 'check',
        time_budget: float | None = None,
        seed: int = 0,
        encoder: Mapping[str, Any] | EncoderConfig = ...,
        whitening: float = 0.25,
    ) -> None: ...

class LinearFlat(_LinearFlat):
    """A linear classifier per label over TF-IDF or your own features: exact, for up to tens of thousands of labels.

    Parameters
    ----------
    tfidf
        How texts become features (not used when the data has features). Keys: analyzer, ngrams, stop_words, lemmas, lemmatizer, stemmer, min_df, max_df, max_features, sublinear, idf, norm, lowercase, hash_bits.
    feature_norm
        Scale the data's own features to unit L2 norm per document, when training and when predicting.
    vector_scale
        Read the data's dense vectors next to TF-IDF of its texts, multiplied by this; null: one of both.
    label_documents
        Label names as training documents: `texts` (of the data), or a vocabulary file with other names as well.
    label_language
        Language of the names in a SKOS file of `label_documents`.
    solver
        How the classifiers are trained. Keys: loss, cost_positive, cost_negative, bias, tolerance, max_passes, threshold, max_weights.
    relevance
        Weight positive examples by the labels' values in the data.
    post_processor
        How margins become scores; none changes the order, but hinges make all above 1 equal.
    precision
        Precision of the stored weights; int8 has one scale per classifier.
    memory
        Refuse to train what does not fit in memory: `check`, `ignore`, or a limit in GB.
    time_budget
        Wall-clock seconds for all of `fit`, including time before an interruption. With less time the solver makes fewer passes.
    seed
        Seed of training.
    """
    def __init__(
        self,
        *,
        tfidf: Mapping[str, Any] | TfidfConfig = ...,
        feature_norm: Optional[Literal['l2']] = None,
        vector_scale: float | None = None,
        label_documents: str | None = None,
        label_language: str | None = None,
        solver: Mapping[str, Any] | SolverConfig = ...,
        relevance: bool = False,
        post_processor: Literal['l1_hinge', 'l2_hinge', 'l3_hinge', 'l4_hinge', 'log_l1_hinge', 'log_l2_hinge', 'log_l3_hinge', 'log_l4_hinge', 'smooth_l3_hinge', 'log_smooth_l3_hinge', 'sigmoid', 'log_sigmoid', 'none'] = 'sigmoid',
        precision: Literal['float32', 'float16', 'int8'] = 'int8',
        memory: Union[Literal['check', 'ignore'], float] = 'check',
        time_budget: float | None = None,
        seed: int = 0,
    ) -> None: ...

class LinearTree(_LinearTree):
    """A tree of linear classifiers over TF-IDF or your own features: fast on a CPU, for any number of labels.

    Parameters
    ----------
    tfidf
        How texts become features (not used when the data has features). Keys: analyzer, ngrams, stop_words, lemmas, lemmatizer, stemmer, min_df, max_df, max_features, sublinear, idf, norm, lowercase, hash_bits.
    feature_norm
        Scale the data's own features to unit L2 norm per document, when training and when predicting.
    vector_scale
        Read the data's dense vectors next to TF-IDF of its texts, multiplied by this; null: one of both.
    label_documents
        Label names as training documents: `texts` (of the data), or a vocabulary file with other names as well.
    label_language
        Language of the names in a SKOS file of `label_documents` or `hierarchy`.
    label_text_weight
        Weight of a label's names, relative to its documents, when labels are clustered: 0 for documents alone, 1 for names alone. Names are those of `label_documents`, or the label texts of the data.
    tree
        The tree: labels halved recursively, clustered into `branching` groups at once, or your own hierarchy.
    hierarchy
        With `tree: hierarchy`, a file of child<TAB>parent lines, whose children may be labels or groups of them, or a vocabulary with broader concepts (SKOS, or a table with a header).
    trees
        Number of trees whose scores are averaged; each is clustered with another seed. A hierarchy is one tree.
    leaf_size
        Maximum number of labels per leaf cluster.
    branching
        Children per inner node.
    label_features
        Largest features per label in clustering; null keeps all.
    solver
        How the classifiers are trained. Keys: loss, cost_positive, cost_negative, bias, tolerance, max_passes, threshold, max_weights.
    negatives
        Training documents of a node: those of its labels; also false positives of levels above; also your own.
    user_negatives
        With `user`: a sparse .npz [documents, labels], or data of the same documents with wrong labels.
    relevance
        Weight positive examples by the labels' values in the data.
    beam
        Beam width: nodes kept per level in prediction, or a list with one for each level above the labels.
    labels_per_tree
        Labels that each of several trees contributes to the average, at least; more if more are predicted.
    post_processor
        How a node's margin becomes a score that is combined with its parent's, or a list with one for each level.
    ties
        Order of labels with equal scores: by index in the label space, or by position in the tree, the first of several, as PECOS orders them.
    precision
        Precision of the stored weights; int8 has one scale per classifier.
    memory
        Refuse to train what does not fit in memory: `check`, `ignore`, or a limit in GB.
    time_budget
        Wall-clock seconds for all of `fit`, including time before an interruption. With less time fewer trees are trained, at least one, or the solver makes fewer passes.
    seed
        Seed of clustering and training.
    """
    def __init__(
        self,
        *,
        tfidf: Mapping[str, Any] | TfidfConfig = ...,
        feature_norm: Optional[Literal['l2']] = None,
        vector_scale: float | None = None,
        label_documents: str | None = None,
        label_language: str | None = None,
        label_text_weight: float = 0.0,
        tree: Literal['balanced', 'kway', 'hierarchy'] = 'balanced',
        hierarchy: str | None = None,
        trees: int = 3,
        leaf_size: int = 100,
        branching: int = 16,
        label_features: int | None = 500,
        solver: Mapping[str, Any] | SolverConfig = ...,
        negatives: Literal['teacher', 'matcher', 'user', 'matcher+user'] = 'teacher',
        user_negatives: str | None = None,
        relevance: bool = False,
        beam: int | tuple[int, ...] = 10,
        labels_per_tree: int = 20,
        post_processor: Union[Literal['l1_hinge', 'l2_hinge', 'l3_hinge', 'l4_hinge', 'log_l1_hinge', 'log_l2_hinge', 'log_l3_hinge', 'log_l4_hinge', 'smooth_l3_hinge', 'log_smooth_l3_hinge', 'sigmoid', 'log_sigmoid', 'none'], tuple[Literal['l1_hinge', 'l2_hinge', 'l3_hinge', 'l4_hinge', 'log_l1_hinge', 'log_l2_hinge', 'log_l3_hinge', 'log_l4_hinge', 'smooth_l3_hinge', 'log_smooth_l3_hinge', 'sigmoid', 'log_sigmoid', 'none'], ...]] = 'l3_hinge',
        ties: Literal['label', 'tree'] = 'label',
        precision: Literal['float32', 'float16', 'int8'] = 'int8',
        memory: Union[Literal['check', 'ignore'], float] = 'check',
        time_budget: float | None = None,
        seed: int = 0,
    ) -> None: ...

class Mach(_Mach):
    """Labels hashed into buckets: memory that does not grow with the labels, training without communication.

    Parameters
    ----------
    repetitions
        Number of hash tables, each with its own network (R).
    buckets
        Buckets per table (B).
    hash
        murmur: the tables of the original implementation, bit for bit; universal: computed when needed, not stored; balanced: a random permutation cut into equal parts.
    lookups
        Folder with tables in the original's format (bucket_order_0.npy ...), instead of hashing.
    feature_hashing
        Number of rows that features are hashed into, differently in each repetition; null: one row per feature.
    hidden
        Widths of the hidden layers; without any, the networks are linear.
    loss
        bce: a document may have many labels; softmax: it has one (ODP, ImageNet).
    score
        How bucket scores are combined to a label's score: the mean of log-odds (logits), the mean, minimum (least) or median of probabilities, or the unbiased estimator of the label's probability, which is meant for softmax. null is logits with bce and unbiased with softmax.
    candidates
        Score only labels of the best buckets; null: all labels, exactly. Predictions restricted to some labels, or with label weights, score all of those. Keys: buckets, hits.
    repartition
        Learn the buckets of labels during training; null keeps the hashed ones. Keys: every, times, offers, choices.
    training
        Settings of training, for each repetition. Keys: epochs, steps, batch_size, tokens_per_batch, accumulate, clip, optimiser, schedule, precision, validate_every, metric, early_stopping, restore_best, averaging, time_budget, checkpoint_every, shard_head, log_every, load_ahead, tensorboard, seed.
    at_once
        Repetitions that one process trains at the same time, in batched products; the result is the same.
    repetitions_folder
        Folder of finished repetitions, a folder per repetition, which several processes may fill; null keeps them with the run.
    missing
        What to do with repetitions that are not finished: train them, or build a model without them.
    tfidf
        How texts become features. Keys: analyzer, ngrams, stop_words, lemmas, lemmatizer, stemmer, min_df, max_df, max_features, sublinear, idf, norm, lowercase, hash_bits.
    """
    def __init__(
        self,
        *,
        repetitions: int = 8,
        buckets: int = 1000,
        hash: Literal['murmur', 'universal', 'balanced'] = 'murmur',
        lookups: str | None = None,
        feature_hashing: int | None = None,
        hidden: list[int] = [256],
        loss: Literal['bce', 'softmax'] = 'bce',
        score: Optional[Literal['logits', 'mean', 'least', 'median', 'unbiased']] = None,
        candidates: Mapping[str, Any] | CandidatesConfig | None = ...,
        repartition: Mapping[str, Any] | RepartitionConfig | None = ...,
        training: Mapping[str, Any] | MachTraining = ...,
        at_once: int = 1,
        repetitions_folder: str | None = None,
        missing: Literal['train', 'leave'] = 'train',
        tfidf: Mapping[str, Any] | TfidfConfig = ...,
    ) -> None: ...

class MheFace(_MheFace):
    """Faces to vectors and people: IResNet or MobileFaceNet with ArcFace or CosFace, all people or sampled groups.

    Parameters
    ----------
    image
        How images are read and augmented: aligned faces, pixels from -1 to 1, mirrored at random. Keys: size, channels, fit, resize, interpolation, mean, std, augmentation, max_pixels, bad_images, memory.
    training
        Settings of training. Keys: epochs, steps, batch_size, tokens_per_batch, accumulate, clip, optimiser, schedule, precision, validate_every, metric, early_stopping, restore_best, averaging, time_budget, checkpoint_every, shard_head, log_every, load_ahead, tensorboard, seed.
    valid_fraction
        Fraction of the training images held out to choose the best weights when the data has no valid part; at most 5,000.
    monitor
        Detects collapse during training. Keys: enabled, probe, attention, stop_on, patience.
    network
        The network from a face to its vector. Keys: network, width_factor, dimension, dropout.
    head
        Margin, and the people that a step is trained against. Keys: kind, margin, scale, sampling, sample_rate, radices, order, negatives, sampled_groups, sampled_fraction, block.
    mirror
        Whether `encode` adds the vector of the mirror image, as is usual for verification; it takes twice the time.
    """
    def __init__(
        self,
        *,
        image: Mapping[str, Any] | ImageConfig = ...,
        training: Mapping[str, Any] | TrainingConfig = ...,
        valid_fraction: float = 0.05,
        monitor: Mapping[str, Any] | MonitorConfig = ...,
        network: Mapping[str, Any] | FaceNetworkConfig = ...,
        head: Mapping[str, Any] | MarginConfig = ...,
        mirror: bool = True,
    ) -> None: ...

class MheImage(_MheImage):
    """Images to labels by a residual network and multi-head encoding: product, cascade, sampling or one output each.

    Parameters
    ----------
    image
        How images are read and augmented. Keys: size, channels, fit, resize, interpolation, mean, std, augmentation, max_pixels, bad_images, memory.
    training
        Settings of training. Keys: epochs, steps, batch_size, tokens_per_batch, accumulate, clip, optimiser, schedule, precision, validate_every, metric, early_stopping, restore_best, averaging, time_budget, checkpoint_every, shard_head, log_every, load_ahead, tensorboard, seed.
    valid_fraction
        Fraction of the training images held out to choose the best weights when the data has no valid part; at most 5,000.
    monitor
        Detects collapse during training. Keys: enabled, probe, attention, stop_on, patience.
    backbone
        The network from images to vectors. Keys: name, channels, stem, pool, dropout, model, architecture.
    head
        From vectors to labels: one output per label, or digits of labels. Keys: kind, loss, reduction, radices, heads, order, bottleneck, groups, beam, negatives, sampled_groups, sampled_fraction, log_q, bias, dropout, block.
    """
    def __init__(
        self,
        *,
        image: Mapping[str, Any] | ImageConfig = ...,
        training: Mapping[str, Any] | TrainingConfig = ...,
        valid_fraction: float = 0.05,
        monitor: Mapping[str, Any] | MonitorConfig = ...,
        backbone: Mapping[str, Any] | BackboneConfig = ...,
        head: Mapping[str, Any] | DigitHeadConfig = ...,
    ) -> None: ...

class MheText(_MheText):
    """A fine-tuned text encoder that scores labels in groups: multi-head encoding, for many labels.

    Parameters
    ----------
    encoder
        The pretrained encoder and its tokenization. Keys: model, architecture, vocabulary, max_length, long_texts, windows, pooling, layers, frozen, precision, gradient_checkpointing.
    head
        Any other head; instead of all settings of groups, loss and dropout. Keys: kind, loss, reduction, radices, heads, order, bottleneck, groups, beam, negatives, sampled_groups, sampled_fraction, log_q, bias, dropout, block.
    training
        Settings of training. Keys: epochs, steps, batch_size, tokens_per_batch, accumulate, clip, optimiser, schedule, precision, validate_every, metric, early_stopping, restore_best, averaging, time_budget, checkpoint_every, shard_head, log_every, load_ahead, tensorboard, seed.
    head_epochs
        Epochs in which only the head is trained, on the vectors of the pretrained encoder, before both are trained together: the texts are encoded once more, and gradients of an untrained head do not disturb the encoder. null is 10, and 0 if the encoder is frozen or starts from random weights.
    valid_fraction
        Fraction of the training documents held out to choose the best weights when the data has no valid part; at most 2,000 documents.
    monitor
        Detects collapse during training. Keys: enabled, probe, attention, stop_on, patience.
    num_group
        Groups of labels, fewer if the last ones would be empty; 0: one output per label, without groups. A good number is some times the square root of the number of labels (`labelwise plan --digits`).
    groups
        Groups per document whose labels are scored in training: all true ones, then those ranked highest.
    beam
        Groups whose labels are scored in prediction; null: as many as in training.
    bottleneck
        Width of the label embeddings.
    order
        Which labels form a group: neighbours by index, as published; labels dealt out by frequency; neighbours in a balanced tree of the labels' TF-IDF features, which is better where training is short; or at random.
    loss
        Binary cross-entropy of each score, or softmax, for documents with one label.
    reduction
        Sum of the binary cross-entropies of a document, or the mean over groups and over labels, as published.
    dropout
        Dropout rate of the document's vector.
    """
    def __init__(
        self,
        *,
        encoder: Mapping[str, Any] | EncoderConfig = ...,
        head: Mapping[str, Any] | DigitHeadConfig | None = ...,
        training: Mapping[str, Any] | TrainingConfig = ...,
        head_epochs: int | None = None,
        valid_fraction: float = 0.05,
        monitor: Mapping[str, Any] | MonitorConfig = ...,
        num_group: int = 0,
        groups: int = 10,
        beam: int | None = None,
        bottleneck: int = 400,
        order: Literal['index', 'frequency', 'clustered', 'random'] = 'index',
        loss: Literal['bce', 'softmax'] = 'bce',
        reduction: Literal['sum', 'mean'] = 'sum',
        dropout: float = 0.5,
    ) -> None: ...

class Popularity(_Popularity):
    """The most frequent labels for every document.
    """
    def __init__(
        self,
    ) -> None: ...

class TextEncoder(_TextEncoder):
    """A pretrained text encoder with one output per label, fine-tuned: for short texts and labels with meaning.

    Parameters
    ----------
    encoder
        The pretrained encoder and its tokenization. Keys: model, architecture, vocabulary, max_length, long_texts, windows, pooling, layers, frozen, precision, gradient_checkpointing.
    head
        Outputs and loss. Keys: loss, bias, dropout, block.
    training
        Settings of training. Keys: epochs, steps, batch_size, tokens_per_batch, accumulate, clip, optimiser, schedule, precision, validate_every, metric, early_stopping, restore_best, averaging, time_budget, checkpoint_every, shard_head, log_every, load_ahead, tensorboard, seed.
    head_epochs
        Epochs in which only the head is trained, on the vectors of the pretrained encoder, before both are trained together: the texts are encoded once more, and gradients of an untrained head do not disturb the encoder. null is 10, and 0 if the encoder is frozen or starts from random weights.
    valid_fraction
        Fraction of the training documents held out to choose the best weights when the data has no valid part; at most 2,000 documents.
    monitor
        Detects collapse during training. Keys: enabled, probe, attention, stop_on, patience.
    """
    def __init__(
        self,
        *,
        encoder: Mapping[str, Any] | EncoderConfig = ...,
        head: Mapping[str, Any] | HeadConfig = ...,
        training: Mapping[str, Any] | TrainingConfig = ...,
        head_epochs: int | None = None,
        valid_fraction: float = 0.05,
        monitor: Mapping[str, Any] | MonitorConfig = ...,
    ) -> None: ...

class XRTransformer(_XRTransformer):
    """An encoder fine-tuned through a label tree, and linear trees over TF-IDF and its vectors: for a GPU.

    Parameters
    ----------
    tfidf
        How texts become features (not used when the data has features). Keys: analyzer, ngrams, stop_words, lemmas, lemmatizer, stemmer, min_df, max_df, max_features, sublinear, idf, norm, lowercase, hash_bits.
    feature_norm
        Scale the data's own features to unit L2 norm per document, when training and when predicting.
    vector_scale
        Norm of a document's vector, which is centred by the mean of the training documents; rows of TF-IDF have the norm 1. 0.5 suits long texts, up to 1 short ones, in which words say less.
    label_documents
        Label names as training documents: `texts` (of the data), or a vocabulary file with other names as well.
    label_language
        Language of the names in a SKOS file of `label_documents` or `hierarchy`.
    label_text_weight
        Weight of a label's names, relative to its documents, when labels are clustered: 0 for documents alone, 1 for names alone. Names are those of `label_documents`, or the label texts of the data.
    tree
        The tree: labels halved recursively, clustered into `branching` groups at once, or your own hierarchy.
    hierarchy
        With `tree: hierarchy`, a file of child<TAB>parent lines, whose children may be labels or groups of them, or a vocabulary with broader concepts (SKOS, or a table with a header).
    trees
        Number of trees whose scores are averaged; each is clustered with another seed. A hierarchy is one tree.
    leaf_size
        Maximum number of labels per leaf cluster.
    branching
        Children per inner node.
    label_features
        Largest features per label in clustering; null keeps all.
    solver
        How the classifiers are trained. Keys: loss, cost_positive, cost_negative, bias, tolerance, max_passes, threshold, max_weights.
    negatives
        Training documents of a node: those of its labels; also false positives of levels above; also your own.
    user_negatives
        With `user`: a sparse .npz [documents, labels], or data of the same documents with wrong labels.
    relevance
        Weight positive examples by the labels' values in the data.
    beam
        Beam width: nodes kept per level in prediction, or a list with one for each level above the labels.
    labels_per_tree
        Labels that each of several trees contributes to the average, at least; more if more are predicted.
    post_processor
        How a node's margin becomes a score that is combined with its parent's, or a list with one for each level.
    ties
        Order of labels with equal scores: by index in the label space, or by position in the tree, the first of several, as PECOS orders them.
    precision
        Precision of the stored weights.
    memory
        Refuse to train what does not fit in memory: `check`, `ignore`, or a limit in GB.
    time_budget
        Wall-clock seconds for all of `fit`, including time before an interruption. With less time fewer trees are trained, at least one, or the solver makes fewer passes.
    seed
        Seed of clustering and training.
    encoder
        The encoder of the document vectors. Keys: model, architecture, vocabulary, max_length, long_texts, windows, pooling, layers, frozen, precision, gradient_checkpointing.
    whitening
        Divide every principal direction of the vectors by its variance to this power: 0 for vectors as they are, 0.5 for the same variance in all directions.
    fine_tuning
        How the encoder is fine-tuned. Keys: leaf_size, branching, top_nodes, keep_tree, max_nodes, documents, loss, weighted, dropout, first_head, bootstrap, bootstrap_cost, negatives, beam, training, level_steps, level_rates, level_warmup, valid_fraction.
    """
    def __init__(
        self,
        *,
        tfidf: Mapping[str, Any] | TfidfConfig = ...,
        feature_norm: Optional[Literal['l2']] = None,
        vector_scale: float = 0.5,
        label_documents: str | None = None,
        label_language: str | None = None,
        label_text_weight: float = 0.0,
        tree: Literal['balanced', 'kway', 'hierarchy'] = 'balanced',
        hierarchy: str | None = None,
        trees: int = 3,
        leaf_size: int = 100,
        branching: int = 16,
        label_features: int | None = 500,
        solver: Mapping[str, Any] | SolverConfig = ...,
        negatives: Literal['teacher', 'matcher', 'user', 'matcher+user'] = 'teacher',
        user_negatives: str | None = None,
        relevance: bool = False,
        beam: int | tuple[int, ...] = 10,
        labels_per_tree: int = 20,
        post_processor: Union[Literal['l1_hinge', 'l2_hinge', 'l3_hinge', 'l4_hinge', 'log_l1_hinge', 'log_l2_hinge', 'log_l3_hinge', 'log_l4_hinge', 'smooth_l3_hinge', 'log_smooth_l3_hinge', 'sigmoid', 'log_sigmoid', 'none'], tuple[Literal['l1_hinge', 'l2_hinge', 'l3_hinge', 'l4_hinge', 'log_l1_hinge', 'log_l2_hinge', 'log_l3_hinge', 'log_l4_hinge', 'smooth_l3_hinge', 'log_smooth_l3_hinge', 'sigmoid', 'log_sigmoid', 'none'], ...]] = 'l3_hinge',
        ties: Literal['label', 'tree'] = 'label',
        precision: Literal['float32', 'float16', 'int8'] = 'float32',
        memory: Union[Literal['check', 'ignore'], float] = 'check',
        time_budget: float | None = None,
        seed: int = 0,
        encoder: Mapping[str, Any] | EncoderConfig = ...,
        whitening: float = 0.25,
        fine_tuning: Mapping[str, Any] | FineTuningConfig = ...,
    ) -> None: ...
